"""CuIR: nodes, scalar expressions, text form, validator, interpreter, anchors."""
