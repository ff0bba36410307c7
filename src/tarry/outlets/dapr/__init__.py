"""Broker components: what Dapr calls `pubsub.X`, each speaking to its broker as Dapr's own component does.

component   the interface, its values and its errors
properties  a component's metadata, read field by field
brokers/    one module for each kind of broker, loaded when a component of that kind is made
"""
