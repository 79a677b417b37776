"""Tamper evidence: a Merkle tree over each partition's log, signed checkpoints, proofs that need nothing else."""
