"""What tests of Arvados's blocks and collections say often."""

from __future__ import annotations

import hashlib

from ebbtide.doors.arvados.store.collections import ArvadosCollection
from ebbtide.doors.arvados.store.manifests import parse_manifest
from ebbtide.doors.arvados.store.repository import ArvadosRepository
from ebbtide.store.repository import Repository

HOLDER = "EBBTHOLDER"


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def put_block(lake: Repository, data: bytes, *, holder: str = HOLDER) -> str:
    return ArvadosRepository(lake).blocks.put(md5(data), data, holder=holder, size_bytes=len(data))


def manifest_of(locator: str, name: str = "file") -> str:
    return f". {locator} 0:{locator.split('+')[1]}:{name}\n"


def read_block(lake: Repository, locator: str, *, holder: str = HOLDER) -> bytes:
    return b"".join(ArvadosRepository(lake).blocks.read(locator, holder=holder).pieces)


def read_blocks(lake: Repository, text: str) -> list[bytes]:
    return [
        read_block(lake, locator)
        for locators in parse_manifest(text).locators.values()
        for locator in locators
    ]


def save(lake: Repository, project_id: str, name: str, text: str) -> ArvadosCollection:
    return ArvadosRepository(lake).collections.create(project_id, name, text, holder=HOLDER)


def signed(lake: Repository, found: ArvadosCollection) -> str:
    collection_id = found.listed.collection_id
    return ArvadosRepository(lake).collections.signed_manifest(collection_id, holder=HOLDER)
