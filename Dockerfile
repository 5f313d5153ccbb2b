# Builds Baudway and puts it, alone with its own config, into a small image. Works with docker (BuildKit or not), podman and
# buildah; so no heredocs and no cache mounts. Docs/service.md says how to run it. The targets:
#   (none)    `slim`: Debian without documentation, with a shell
#   minimal   the program and the libraries that it is linked with, on nothing; no shell
#   symbols   what Deploy/place reads
# Deploy/image makes images that are the same each time, with labels, and can put a program into them that is built already.
FROM docker.io/library/swift:6.3-bookworm AS build
RUN apt-get -q update \
 && DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends libyaml-dev libssl-dev zlib1g-dev libbluetooth-dev node-xterm \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Package.swift ./
COPY Sources Sources
# Not built, but Package.swift names its folders.
COPY Tests Tests
COPY Deploy/release.flags Deploy/release.order Deploy/
# libstdc++ is linked in (see Deploy/build).
# hadolint ignore=DL4006
RUN products=$(swift build -c release --show-bin-path) && mkdir -p "$products" \
 && ln -s "$(clang -print-file-name=libstdc++.a)" "$products/" \
 && sed "s,@TREE@,$PWD,g" Deploy/release.flags | xargs swift build \
 && mkdir -p /out/usr/bin \
 && objcopy --only-keep-debug .build/release/baudway /baudway.debug \
 && strip --strip-all -o /out/usr/bin/baudway .build/release/baudway

# What Deploy/place reads: docker build --target symbols --output . .
FROM scratch AS symbols
COPY --from=build /baudway.debug /

# Deploy/image --binary has another program here.
FROM build AS program

FROM docker.io/library/debian:bookworm-slim AS libraries
# 900 is the gateway's own number; 20 is dialout, the group that serial ports belong to. Nobody logs in, so there is no line in
# /etc/shadow, which would have the day. What is removed has times in it, or copies of what was there before.
COPY LICENSE Deploy/debian/copyright /usr/share/doc/baudway/
RUN apt-get -q update \
 && DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends ca-certificates libyaml-0-2 libssl3 zlib1g libgcc-s1 \
 && sed -i 's/^@MIT@$/ In LICENSE, beside this file./' /usr/share/doc/baudway/copyright \
 && echo 'baudway:x:900:20::/nonexistent:/usr/sbin/nologin' >>/etc/passwd \
 && rm -rf /var/lib/apt/lists/* /var/cache/ldconfig/aux-cache /var/cache/debconf/*-old /var/lib/dpkg/*-old \
 && find /var/log -type f -delete

# Certificates and OpenSSL's defaults for TLS; users and groups by name; the order in which names are looked up; and for each
# library its line for scanners, and its licence. Times are UTC.
FROM libraries AS tree
COPY --from=program /out /tree
# hadolint ignore=DL4006
RUN set -eu; mkdir -p /tree/etc/ssl/certs /tree/usr/lib/ssl /tree/usr/share/doc /tree/run/lock /tree/var/lib/dpkg/status.d /tree/tmp; \
    chmod 1777 /tree/tmp /tree/run/lock; \
    libraries=$(ldd /tree/usr/bin/baudway | grep -o '/[^ ]*'); \
    for file in $libraries; do \
      mkdir -p "/tree${file%/*}"; cp -L "$file" "/tree$file"; \
    done; \
    cp /etc/ssl/certs/ca-certificates.crt /tree/etc/ssl/certs/; \
    cp /etc/ssl/openssl.cnf /tree/etc/ssl/; \
    ln -s /etc/ssl/certs/ca-certificates.crt /tree/usr/lib/ssl/cert.pem; \
    ln -s /etc/ssl/certs /etc/ssl/openssl.cnf /tree/usr/lib/ssl/; \
    cp /etc/group /etc/nsswitch.conf /etc/os-release /etc/debian_version /tree/etc/; \
    grep -E '^(root|nobody|baudway):' /etc/passwd >/tree/etc/passwd; \
    for package in ca-certificates base-files $(for file in $libraries; do dpkg-query -S "$(realpath "$file")" 2>/dev/null || dpkg-query -S "$(realpath "$file" | sed 's,^/usr,,')"; done | cut -d: -f1 | sort -u); do \
      dpkg-query -s "$package" >"/tree/var/lib/dpkg/status.d/$package"; \
      mkdir -p "/tree/usr/share/doc/$package"; cp -L "/usr/share/doc/$package/copyright" "/tree/usr/share/doc/$package/" 2>/dev/null || true; \
    done; \
    cp -r /usr/share/doc/baudway /tree/usr/share/doc/; \
    cp -r /usr/share/common-licenses /tree/usr/share/

FROM scratch AS minimal
COPY --from=tree /tree /
COPY Deploy/container.yaml /etc/baudway/config.yaml
USER 900:20
EXPOSE 4001 4002 4003
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 CMD ["/usr/bin/baudway", "health", "/etc/baudway/config.yaml"]
ENTRYPOINT ["/usr/bin/baudway"]
CMD ["serve", "/etc/baudway/config.yaml"]

FROM libraries AS slim
COPY --from=program /out /
COPY Deploy/container.yaml /etc/baudway/config.yaml
USER 900:20
EXPOSE 4001 4002 4003
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 CMD ["/usr/bin/baudway", "health", "/etc/baudway/config.yaml"]
ENTRYPOINT ["/usr/bin/baudway"]
CMD ["serve", "/etc/baudway/config.yaml"]
