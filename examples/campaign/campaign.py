"""A campaign of a million letters from a DataFrame, as one batch: all of them are scheduled, or none.

python campaign.py http://127.0.0.1:8080 [LETTERS]
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tarry.pipeline import datasource


def main(server: str, letters: int) -> None:
    """Schedule the letters, a thousand a second from ten seconds from now on."""
    spark = SparkSession.builder.appName("campaign").getOrCreate()
    datasource.register(spark)
    customers = spark.range(letters).select(
        f.col("id"),
        f.concat(f.lit("customer-"), f.col("id")).alias("owner"),
    )
    campaign = customers.select(
        "owner",
        f.struct(f.col("owner").alias("to"), f.lit("Spring is here").alias("subject")).alias("payload"),
        (f.lit(10_000) + f.floor(f.col("id") / 1000) * 1000).alias("delay_ms"),
    )
    (
        campaign.write.format("tarry")
        .option("server", server)
        .option("name", "spring-letters")
        .option("destination", "letters")
        .mode("append")
        .save()
    )
    print(f"scheduled {letters:,} letters")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000)
