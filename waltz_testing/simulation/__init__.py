"""A whole cluster in one process and in virtual time: the machines of the product, on a simulated world."""
