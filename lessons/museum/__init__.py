"""The page Museum: known bugs, each put into the current step; which badge of the lessons is the first to turn red?

`link` is the address, `source` the faulty batch and what the lessons' badges say of it, `view` the page as plain values;
`handlers` says what an event does, `shell` is the Gradio wiring.
"""
