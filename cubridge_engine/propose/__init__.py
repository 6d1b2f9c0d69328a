"""A language model proposes where the rules end; the verifier decides.

Nothing here is used, imported or mentioned until somebody names a model. Two halves: `given`, `attempt` and what they
use run in the worker, where kernels are read and verified; `client`, `loop` and `transcript` run in the caller's
process, which is the only one that knows the key and the only one that talks to the endpoint.
"""
