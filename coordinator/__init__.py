"""The control plane: decides which job trains on which GPUs, writes it into the store and carries it out.

Only the acting coordinator changes the `state` of an accepted job and the rows of `gpus`. Others write into `jobs`:
users insert documents, and the launcher inserts those of Volcano Jobs, asks for their cancellation, and records what it
finds out about their pods.
"""
