# The service over one workspace:
#   docker build -t fixstar .
#   docker run --rm --read-only --tmpfs /tmp -v shop:/workspace -p 127.0.0.1:8080:8080 fixstar
# With --gpus all it uses a GPU. PyTorch also has a much smaller package for CPUs, in an index of its own (named on its
# installation page): build with --build-arg TORCH_INDEX=ADDRESS to take it.

FROM python:3.12-slim AS build
ARG TORCH_INDEX=
WORKDIR /src
RUN python -m venv /opt/fixstar
ENV PATH=/opt/fixstar/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY constraints.txt ./
RUN pip install -c constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install -c constraints.txt ".[service,postgres,index,onnx]"

FROM python:3.12-slim
LABEL org.opencontainers.image.title="fixstar" \
      org.opencontainers.image.description="Upgrade your image-embedding model, keep your gallery" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 fixstar \
    && useradd --uid 10001 --gid fixstar --no-create-home --home-dir /tmp --shell /usr/sbin/nologin fixstar \
    && install -d -o fixstar -g fixstar /workspace
COPY --from=build /opt/fixstar /opt/fixstar
ENV PATH=/opt/fixstar/bin:$PATH HOME=/tmp MPLCONFIGDIR=/tmp/matplotlib PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /workspace
VOLUME /workspace
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
ENTRYPOINT ["fixstar"]
CMD ["serve", "--host", "0.0.0.0", "-w", "/workspace"]
