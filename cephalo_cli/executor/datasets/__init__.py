"""Where samples come from: text, records, token files, images, noise.

A name becomes files of one format (`formats`), files become documents or records (`records`), those become tokens
(`tokenizer`) that are kept on disk (`cache`), and tokens become the samples of a model's family (`windows`, `masked`,
`completions`), as do images (`images`) and noise (`noise`). `opening` puts these together; `options` says what can be
asked for.
"""

__all__: list[str] = []
