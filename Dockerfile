# The command line of Plimsoll in a container:
#
#   docker build --tag=plimsoll .
#   docker run --rm plimsoll demo
#   docker run --rm -v "$PWD:/work" plimsoll tune --network resnet20 --data digits --study digits
#
# With `--gpus all`, NVIDIA's container toolkit adds the driver; NVIDIA's libraries are found where the loader finds them (docs/cuda.md).
# The PyTorch front is a package for Python, `pip install ./python`, and not in here.
FROM rust:1.95-slim-bookworm AS build
WORKDIR /source
COPY . .
RUN cargo install --locked --path . --root /installed

FROM debian:bookworm-slim
COPY --from=build /installed/bin/plimsoll /usr/local/bin/plimsoll
# Studies are written here.
WORKDIR /work
ENTRYPOINT ["plimsoll"]
