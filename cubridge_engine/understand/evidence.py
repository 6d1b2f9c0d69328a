"""How a sentence is known. The words are those that a reader sees."""

EVIDENCE: dict[str, str] = {
    "read": "follows from the text by symbolic execution",
    "executed": "seen when the program that was read (its CuIR) was executed",
    "observed": "seen when the compiled kernel ran in the simulator",
    "contract": "promised by the kernel's contract",
}
