"""Who shares a question for the mark: an answer counts for nobody who came after its question had left."""

from __future__ import annotations

from waltz_core.client.mark_questions import MarkQuestions


def test_who_comes_while_a_question_is_under_way_shares_the_next_one() -> None:
    questions = MarkQuestions[str]()
    assert questions.join("first")
    assert [questions.join(who) for who in ("second", "third")] == [False, False]
    answered, again = questions.answered()
    assert (list(answered), again) == (["first"], True)
    assert not questions.join("fourth")
    answered, again = questions.answered()
    assert (list(answered), again) == (["second", "third"], True)
    answered, again = questions.answered()
    assert (list(answered), again) == (["fourth"], False)
    assert questions.join("fifth")


def test_a_question_under_way_stays_so_when_everybody_has_left() -> None:
    questions = MarkQuestions[str]()
    questions.join("first")
    questions.join("second")
    questions.forget("first")
    questions.forget("second")
    assert not questions.join("third")
    answered, again = questions.answered()
    assert (list(answered), again) == ([], True)
    answered, again = questions.answered()
    assert (list(answered), again) == (["third"], False)
