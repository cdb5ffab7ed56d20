"""Make certificates for tests with the openssl command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# A key of RSA takes a quarter of a second.
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Certificate:
    certificate_file: str
    key_file: str


class Authority:
    """Signs certificates; its own certificate is in ``ca_file``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.ca_file = str(folder / "ca.pem")
        _openssl(
            *("req", "-x509", *_NEW_KEY, "-days", "2", "-subj", "/CN=test authority"),
            *("-keyout", str(folder / "ca.key"), "-out", self.ca_file),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )

    def issue(self, name: str, *, address: str = "127.0.0.1") -> Certificate:
        """Issue a certificate for a host's name and address."""
        made = Certificate(str(self._folder / f"{name}.pem"), str(self._folder / f"{name}.key"))
        request = str(self._folder / f"{name}.csr")
        extensions = self._folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName=DNS:{name},IP:{address}\n", encoding="ascii")
        _openssl(
            *("req", *_NEW_KEY, "-subj", f"/CN={name}"),
            *("-keyout", made.key_file, "-out", request),
        )
        _openssl(
            *("x509", "-req", "-in", request, "-days", "2", "-CA", self.ca_file, "-CAcreateserial"),
            *("-CAkey", str(self._folder / "ca.key"), "-extfile", str(extensions), "-out", made.certificate_file),
        )
        return made


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=120)
