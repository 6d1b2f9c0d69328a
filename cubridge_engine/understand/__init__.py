"""What a kernel does, in words and in mathematics that can be compared: `explain` one kernel, `compare` two."""
