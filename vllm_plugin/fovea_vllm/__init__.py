"""Found-in-the-middle calibration inside vLLM: a plug-in that overwrites the attention of calibrated rows only.

`plugin` registers everything; `request` is what a request says; `admission` refuses what cannot be calibrated;
`batch` knows which request each row of a step belongs to; `step` attends the calibrated rows, with `attention`;
`backends` are vLLM's attention backends with that added; `block_hashes` keeps calibrated keys and values apart in the
prefix cache; `endpoint` returns measured attention over HTTP.
"""
