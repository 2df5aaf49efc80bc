"""The control plane: decides which job trains on which GPUs, writes it into the store and carries it out.

Only the acting coordinator changes the `state` of an accepted job and the rows of `gpus`. Others also write `jobs`:
users insert documents; the launcher inserts and cancels those of Volcano Jobs, deletes refused ones, and writes fields
that it learns from the cluster (`node`, `pinned`, `held_back`, `message`, `unlimitable`).
"""
