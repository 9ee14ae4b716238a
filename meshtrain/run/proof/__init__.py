"""Does this layout compute what one device computes? The real step on a small model, compared tensor by tensor."""

from meshtrain.run.proof.prove import Declared, Proof, Verdict, devices_needed, make_case, make_proof, prepare, prove
from meshtrain.run.proof.text import details, preface, table

__all__ = [
    "Declared", "Proof", "Verdict", "details", "devices_needed", "make_case", "make_proof", "preface", "prepare",
    "prove", "table",
]  # fmt: skip
