# The command line of Plimsoll in a container:
#
#   docker build --tag=plimsoll .
#   docker run --rm plimsoll demo
#   docker run --rm -v "$PWD:/work" plimsoll tune --network resnet20 --data digits --study digits
#
# With `--gpus all`, NVIDIA's container toolkit adds the driver. NVIDIA's other libraries (docs/cuda.md) are not in the image, and
# neither is the PyTorch front, a package for Python (`pip install ./python`).
FROM rust:1.95-slim-bookworm AS build
WORKDIR /source
COPY . .
RUN cargo install --locked --path . --root /installed

FROM debian:bookworm-slim
COPY --from=build /installed/bin/plimsoll /usr/local/bin/plimsoll
# Studies are written here.
WORKDIR /work
ENTRYPOINT ["plimsoll"]
