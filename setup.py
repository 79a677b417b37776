"""The compiled part of the distribution; pyproject.toml says everything else.

It is optional: where no compiler is, or it fails, the installation goes on without, and pure Python runs.
"""

from setuptools import Extension, setup

setup(ext_modules=[Extension("waltz_speedups._loops", ["waltz_speedups/_loops.pyx"], optional=True)])
