# Builds Baudway and puts it, alone with its own config, into a small Debian image. Works with docker (BuildKit or not),
# podman and buildah; so no heredocs and no cache mounts. Deploy/README.md says how to run it.
FROM docker.io/library/swift:6.3-bookworm AS build
RUN apt-get -q update \
 && DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends libyaml-dev libssl-dev zlib1g-dev libbluetooth-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Package.swift ./
COPY Sources Sources
# Not built, but Package.swift names its folders.
COPY Tests Tests
COPY Deploy/release.flags Deploy/release.order Deploy/
# libstdc++ is linked in (see Deploy/build).
RUN products=$(swift build -c release --show-bin-path) && mkdir -p "$products" \
 && ln -s "$(clang -print-file-name=libstdc++.a)" "$products/" \
 && xargs swift build <Deploy/release.flags \
 && mkdir -p /out/usr/bin \
 && objcopy --only-keep-debug .build/release/baudway /baudway.debug \
 && strip --strip-all -o /out/usr/bin/baudway .build/release/baudway

# What Deploy/place reads: docker build --target symbols --output . .
FROM scratch AS symbols
COPY --from=build /baudway.debug /

FROM docker.io/library/debian:bookworm-slim
# 900 is the gateway's own number; 20 is dialout, the group that serial ports belong to.
RUN apt-get -q update \
 && DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends ca-certificates libyaml-0-2 libssl3 zlib1g libgcc-s1 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 900 --gid dialout --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin baudway
COPY --from=build /out /
COPY Deploy/container.yaml /etc/baudway/config.yaml
USER 900:20
EXPOSE 4001 4002 4003
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 CMD ["/usr/bin/baudway", "health", "/etc/baudway/config.yaml"]
ENTRYPOINT ["/usr/bin/baudway"]
CMD ["serve", "/etc/baudway/config.yaml"]
