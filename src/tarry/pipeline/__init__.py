"""The pipeline: the Spark program that keeps the index and the history. The only importer of pyspark."""
