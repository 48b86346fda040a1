"""The Debug page: one batch in, what is wrong with it, where, and what the number should have been.

`link` is the address, `source` the batch and what is computed from it; `about`, `findings`, `grid` and `printed` are sections
of the page as plain values, which `view` puts together; `handlers` says what an event does, `shell` is the Gradio wiring.
"""
