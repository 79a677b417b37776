"""The compiled part of the distribution; pyproject.toml says everything else.

It is optional: where no compiler is, or it fails, the installation goes on without, and pure Python runs.
"""

from setuptools import Extension, setup

_NO_SYMBOLS = ["-g0"]  # Python's own flags ask for debug symbols: a quarter of the compiler's time, and 2 MB

setup(
    ext_modules=[
        Extension("waltz_speedups._loops", ["waltz_speedups/_loops.pyx"], extra_compile_args=_NO_SYMBOLS, optional=True)
    ]
)
