"""Makes what the settings of an issuer ask for. The libraries for its tokens are imported only
then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ebbtide.server.oidc.options import oidc_options
from ebbtide.store.embedded import Store

if TYPE_CHECKING:
    from ebbtide.server.oidc.provider import Provider

_SHARE_OF_THREADS: Final = 4


def open_provider(store: Store) -> Provider | None:
    """Returns the logins by the issuer of the store's settings, or None without one. Nothing is
    asked of the issuer. Raises as `oidc_options` does."""
    options = oidc_options(store.settings)
    if options is None:
        return None
    from ebbtide.server.oidc.issuer import Issuer
    from ebbtide.server.oidc.provider import Provider

    conversations_max = max(1, store.settings.server_threads // _SHARE_OF_THREADS)
    return Provider(options, Issuer(options, conversations_max=conversations_max), store.box)
