"""Every decoder under bytes that nobody sends: only declared errors, no more memory than the input is worth."""
