"""For tests of programs that use Waltz: real clusters in the test's process, and a suite for views of your own.

`docs/howto/testing.md` shows how.
"""

from waltz_testing.views import ViewCase, check_view, transactions, view_checks

__all__ = ["ViewCase", "check_view", "transactions", "view_checks"]
