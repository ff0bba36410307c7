"""The driver on this machine: its ports are for nobody else, not even for other users here."""

from pyspark.sql import SparkSession


def test_the_ports_of_a_local_driver_ask_for_a_secret(spark: SparkSession) -> None:
    jvm = spark._jvm
    assert jvm is not None
    manager = jvm.org.apache.spark.SparkEnv.get().securityManager()
    assert manager.isAuthenticationEnabled()
    # Spark has made it for this session; it is in no setting that a page or a log shows.
    assert len(manager.getSecretKey()) >= 32
    assert manager.getSecretKey() not in str(spark.sparkContext.getConf().getAll())
    # And work is done all the same, by Python workers too.
    assert spark.sparkContext.parallelize(range(10), 2).map(lambda one: one + 1).sum() == 55
