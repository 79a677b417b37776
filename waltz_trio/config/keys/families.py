"""Keys that several processes have under prefixes of their own: TLS, Graphite."""

from __future__ import annotations

from waltz_trio.config.keys.key import Key, Kind, Use


def tls(prefix: str, use: Use, who: str) -> tuple[Key, ...]:
    """The keys of one side of TLS, shown to its peers as `who`."""

    def key(name: str, meaning: str, *, kind: Kind = Kind.TEXT, original: bool = False, default: object = None) -> Key:
        assert default is None or isinstance(default, str | bool)
        return Key(prefix + name, kind, use, meaning, default=default, original=original)

    return (
        key("certificate", f"PEM file with the certificate of {who} and its chain; none = a self-signed one is made"),
        key("key", "PEM file with the private key; none = it stands in the certificate's file"),
        key("keyPassword", "password of the private key"),
        key("keyPasswordFile", "file whose first line is the password, instead of it"),
        key("ca", "PEM file with the authorities trusted; takes the place of trustStore.location"),
        key(
            "verify",
            "true = refuse peers that nothing vouches for, and refuse to start without a trust store; false = accept "
            "everybody, without a warning; unset = verify where a trust store is set, else accept with one warning "
            "(mappings and waltz:// addresses verify)",
            kind=Kind.BOOL,
        ),
        key(
            "requireClientCertificate",
            "accepting side with a trust store: false = clients need no certificate",
            kind=Kind.BOOL,
            default=True,
        ),
        key(
            "verifyHost",
            "compare the peer's name with its certificate when dialing; unset = only where a program names its cluster "
            "by a mapping or a waltz:// address",
            kind=Kind.BOOL,
        ),
        key("keyStore.location", "PKCS12, JKS or PEM file, recognised by its content", original=True),
        key("keyStore.password", "required by the original where a location is set", original=True),
        key("keyStore.passwordFile", "file whose first line is the password, instead of it"),
        key("keyStore.type", "accepted and ignored: the content decides", original=True, default="JKS"),
        key("keyManager.algorithm", "accepted and ignored", original=True, default="SunX509"),
        key(
            "trustStore.location",
            "PKCS12, JKS or PEM file. Accepting side: set = client certificates are required. Dialing side: set = the "
            "peer's chain is verified",
            original=True,
        ),
        key("trustStore.password", "required by the original where a location is set", original=True),
        key("trustStore.passwordFile", "file whose first line is the password, instead of it"),
        key("trustStore.type", "accepted and ignored: the content decides", original=True, default="JKS"),
        key("trustManager.algorithm", "accepted and ignored", original=True, default="SunX509"),
    )


def graphite(prefix: str, use: Use) -> tuple[Key, ...]:
    """The keys of a reporter to Graphite."""
    return (
        Key(prefix + "hostname", Kind.TEXT, use, "where Graphite listens; none = off"),
        Key(prefix + "port", Kind.INT, use, "its port", default=2003, low=1, high=65535),
        Key(prefix + "prefix", Kind.TEXT, use, "prefix of every name", default="waltz"),
        Key(
            prefix + "reportIntervalMs",
            Kind.INT,
            use,
            "time between reports; seconds in spite of its name, as in the original",
            default=60,
            unit="s",
        ),
        Key(prefix + "useUdp", Kind.BOOL, use, "UDP instead of TCP", default=False),
    )
