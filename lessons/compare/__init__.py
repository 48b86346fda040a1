"""The Compare page: one batch under every trainer's settings, and which setting makes the difference.

`link` is the address, `source` the batch; `table`, `bridge`, `tokens` and `printed` are sections of the page as plain values,
which `view` puts together; `handlers` says what an event does, `shell` is the Gradio wiring.
"""
