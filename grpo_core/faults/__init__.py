"""Known bugs, each as what it does to a sound batch: the run that has it would have saved the result.

A fault takes the batch, and where it scores anew the policy and the reference; it returns another batch. Everything that
follows from it is computed anew. `planted` is the table of them.
"""
