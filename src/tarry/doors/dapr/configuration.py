"""Dapr's Configuration file: of it only the preview feature counts that switches delayed messaging."""

from pathlib import Path
from typing import Final

from tarry.doors.dapr.resources import field_of, read_documents

FEATURE: Final = "DelayedMessaging"
API_VERSION: Final = "dapr.io/v1alpha1"


def delayed_messaging(file: Path | None) -> bool:
    """Whether the configuration allows delayed messaging; raises `BadResource`.

        spec:
          features:
          - name: DelayedMessaging
            enabled: false

    It is on where nothing is said: a component must ask for it in any case.
    """
    enabled = True
    for document in [] if file is None else read_documents([file]):
        if document.kind != "Configuration":
            continue
        document.version(API_VERSION)
        for place, feature in enumerate(document.mappings("spec.features"), 1):
            name, given = field_of(feature, "name"), field_of(feature, "enabled")
            if not isinstance(name, str):
                raise document.refuse(f"spec.features[{place}].name", "is missing or not text")
            if not isinstance(given, bool):
                raise document.refuse(f"spec.features[{place}].enabled", "is neither true nor false")
            if name.lower() == FEATURE.lower():
                enabled = given
    return enabled
