"""The data pipeline around a Waltz log: source, archive and restore. Nothing here imports pyspark by itself."""
