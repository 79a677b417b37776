"""Machines that behave as Waltz 0.13.2 does, defects included: what simulated peers of 0.13.2 run.

Each module forks or subclasses the machine of the same part of `waltz_core`, and lists at its top which defects it
reproduces. Vectors that record a deviation are compared with these, and with the outcome of the rule in the product.
The rules that our own machines keep are listed in docs/compatibility.md, under the names that vectors go by.
"""
