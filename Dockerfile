# fedsoft for the CPU. Built from the wheel of `make release`:  docker build -t fedsoft .
FROM python:3.12-slim-bookworm

COPY dist/*.whl constraints.txt /tmp/fedsoft/
# PyTorch's own index has torch for the CPU; pip's usual one brings gigabytes of CUDA (docs/install.md).
ARG TORCH_INDEX
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -c /tmp/fedsoft/constraints.txt torch \
 && pip install --no-cache-dir -c /tmp/fedsoft/constraints.txt /tmp/fedsoft/*.whl \
 && rm -r /tmp/fedsoft \
 && useradd --create-home --uid 10001 fedsoft \
 && install -d -o fedsoft /work

USER fedsoft
WORKDIR /work
ENTRYPOINT ["fedsoft"]
CMD ["--help"]
