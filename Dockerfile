# fedsoft for the CPU. Built from the wheel of `make release`:  docker build -t fedsoft .
FROM python:3.12-slim-bookworm

COPY dist/*.whl constraints.txt /tmp/fedsoft/
# Torch for the CPU comes from PyTorch's own index; that of PyPI brings gigabytes of CUDA.
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu -c /tmp/fedsoft/constraints.txt torch \
 && pip install --no-cache-dir -c /tmp/fedsoft/constraints.txt /tmp/fedsoft/*.whl \
 && rm -r /tmp/fedsoft \
 && useradd --create-home --uid 10001 fedsoft \
 && install -d -o fedsoft /work

USER fedsoft
WORKDIR /work
ENTRYPOINT ["fedsoft"]
CMD ["--help"]
