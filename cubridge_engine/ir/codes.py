"""Findings of executing a program: the same conditions whether CuIR or, later, PTX is executed."""

from ..diagnostics import Row, Severity, register

E = Severity.ERROR

CODES: dict[str, Row] = {
    "CB501": Row(
        E,
        "shared buffer {buffer} is overwritten while other threads may still read it",
        "put a __syncthreads() between the last read and this write",
    ),
    "CB502": Row(
        E,
        "shared buffer {buffer} is read before its asynchronous copy has completed",
        "wait for the group (cp.async.wait_group) and pass a barrier before the read",
    ),
    "CB503": Row(
        E,
        "shared buffer {buffer} is read where nothing was written",
        "check the slot and the tile the prologue loads",
    ),
    "CB504": Row(
        E,
        "this step was not understood and writes {what}, so the program cannot be executed",
        "simplify the statement, or report it: {why}",
    ),
    "CB505": Row(E, "the program names {name}, which has no value here", "bind the parameter with --set {name}=VALUE"),
    "CB506": Row(E, "slot {slot} of {buffer} does not exist (it has {slots})", "check the stage index"),
    "CB507": Row(E, "{count} output elements of {tensor} were never written", "check the store predicate and the grid"),
    "CB508": Row(
        E,
        "rows {first} to {last} of {tensor} are outside the tensor ({rows} rows)",
        "predicate the access by the row count",
    ),
    "CB509": Row(
        E,
        "shared buffer {buffer} is read before a barrier makes the copy visible to other threads",
        "put a __syncthreads() after the copy (and its wait)",
    ),
}
register(CODES)
