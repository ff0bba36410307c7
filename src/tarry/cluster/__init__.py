"""The ledger on Kafka's protocol: its log, the topic that holds it, and whose turn it is to own it.

The rules by which nothing is lost are those of `tarry.ledger.log`; here is what speaks to the brokers.
"""
