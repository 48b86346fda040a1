"""Lesson 15, the page Train: many steps on the lessons' own model, live, and the way back from each into lesson 1.

`link` is the address and `plan` what a run is made of; `run` is one visitor's run in its thread, `runs` all of them, `kept`
their steps on disk; `charts` and `view` are the page as plain values, `handlers` says what an event does, `shell` is Gradio.
"""
