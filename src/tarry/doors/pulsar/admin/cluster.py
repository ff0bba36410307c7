"""Things of which there is one here: the cluster, the broker, and where topics are looked up."""

from typing import Final

from tarry.core.tenants.rights import GOVERN_ALL, OPEN, SEE, TOKEN, USE
from tarry.doors.pulsar.admin.call import AdminCall, AdminOperation, Operations, answer, plain
from tarry.doors.pulsar.admin.refusals import RestError
from tarry.http.response import Response

CLUSTER: Final = "standalone"


async def clusters(_call: AdminCall) -> Response:
    """The one cluster."""
    return answer([CLUSTER])


async def cluster(call: AdminCall) -> Response:
    """Where the cluster is."""
    if call.part("cluster") != CLUSTER:
        raise RestError(404, "Cluster does not exist")
    return answer({"serviceUrl": _web(call), "brokerServiceUrl": call.service_url})


async def brokers(call: AdminCall) -> Response:
    """The one broker."""
    return answer([_host(call)])


async def leader(call: AdminCall) -> Response:
    """The one broker again."""
    return answer({"brokerId": _host(call), "serviceUrl": _web(call)})


async def health(call: AdminCall) -> Response:
    """Whether everything is taken and delivered on time."""
    if not call.engine.ready:
        raise RestError(503, "the server is starting")
    if call.engine.stats().failed or call.engine.trouble:
        # Everybody may ask, so the answer names no file.
        raise RestError(
            503, "the ledger or the index cannot be used; the server's log and /v1/status say why"
        )
    return plain("ok")


async def configuration(call: AdminCall) -> Response:
    """Answer the questions of Pulsar's tools about a broker's configuration, delays among them."""
    broker = call.engine.broker_policy()
    return answer(
        {
            "clusterName": CLUSTER,
            "delayedDeliveryEnabled": str(broker.delayed_delivery).lower(),
            "delayedDeliveryTickTimeMillis": str(broker.tick_ms),
            "delayedDeliveryMaxDelayInMillis": str(broker.max_delay_ms),
        }
    )


async def version(_call: AdminCall) -> Response:
    """Which program this is."""
    from tarry import __version__

    return plain(f"tarry-{__version__}")


async def lookup(call: AdminCall) -> Response:
    """Where a topic is: here, like all."""
    call.named_topic()
    url = call.service_url
    secure = url.startswith("pulsar+ssl")
    return answer(
        {
            "brokerUrl": None if secure else url,
            "brokerUrlTls": url if secure else None,
            "httpUrl": _web(call),
            "httpUrlTls": None,
            "nativeUrl": url,
        }
    )


async def bundle(call: AdminCall) -> Response:
    """Which part of the namespace a topic is in: there is one."""
    call.named_topic()
    return plain("0x00000000_0xffffffff")


def _host(call: AdminCall) -> str:
    return (call.request.header(b"host") or b"").decode("latin-1")


def _web(call: AdminCall) -> str:
    return f"{call.request.scheme}://{_host(call)}"


_TOPIC: Final = "/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}"

OPERATIONS: Operations = (
    AdminOperation("GET", "/admin/v2/clusters", SEE, clusters),
    AdminOperation("GET", "/admin/v2/clusters/{cluster}", GOVERN_ALL, cluster),
    AdminOperation("GET", "/admin/v2/brokers", GOVERN_ALL, brokers),
    AdminOperation("GET", "/admin/v2/brokers/health", OPEN, health),
    AdminOperation("GET", "/admin/v2/brokers/ready", TOKEN, health),
    AdminOperation("GET", "/admin/v2/brokers/version", SEE, version),
    AdminOperation("GET", "/admin/v2/brokers/leaderBroker", GOVERN_ALL, leader),
    AdminOperation("GET", "/admin/v2/brokers/configuration/runtime", GOVERN_ALL, configuration),
    AdminOperation("GET", "/admin/v2/brokers/{cluster}", GOVERN_ALL, brokers),
    AdminOperation("GET", _TOPIC, USE, lookup),
    AdminOperation("GET", _TOPIC + "/bundle", USE, bundle),
)
