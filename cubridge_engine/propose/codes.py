"""Diagnostic rows of asking a model (CB04x)."""

from __future__ import annotations

from ..diagnostics.catalogue import E, N, Row, W, register

register(
    {
        "CB040": Row(
            E,
            "the model '{model}' at {host} cannot be asked: {why}",
            "Check the address, the name of the model and that the server runs.",
        ),
        "CB041": Row(
            E,
            "{host} did not accept the key: {why}",
            "Set CUBRIDGE_MODEL_API_KEY (in the editor: 'CuBridge: Set Model Key') to a key that it accepts.",
        ),
        "CB042": Row(E, "{what}", "{way_out}"),
        "CB043": Row(
            E,
            "no proposal of '{model}' was accepted after {rounds} ({spent}): {last}",
            "Nothing was changed. More rounds or candidates, or another model, may help; a transcript has all of it.",
        ),
        "CB044": Row(
            E,
            "the budget for '{model}' is spent: {what}",
            "Nothing was changed. Allow more, or see in the transcript why the proposals so far were rejected.",
        ),
        "CB045": Row(
            W,
            "'{site}' was proposed by the model '{model}'; what is claimed of it is what the verifier found",
            "Review this change as you would a stranger's.",
        ),
        "CB046": Row(
            E,
            "a model is of no use here: {why}",
            "See the other diagnostics for the way out without one.",
        ),
        "CB047": Row(
            E,
            "'{path}' cannot be replayed: {why}",
            "Replay it with the kernel, the spec and the version of CuBridge that it was recorded with.",
        ),
        "CB048": Row(
            N,
            "the rules were enough: the model '{model}' was not asked",
            "Nothing left this machine.",
        ),
    }
)
