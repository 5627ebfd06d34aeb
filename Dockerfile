# One image for every role; docker-compose.yml says which command each container runs.
# BASE may be an image with CUDA for GPU workers; PyTorch's wheel brings its own CUDA libraries.
ARG BASE=python:3.12-slim
FROM ${BASE}

RUN useradd --create-home --uid 10001 ghostwatt
WORKDIR /opt/ghostwatt

COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY phantom_core phantom_core
COPY ray_jobs ray_jobs
COPY services services
COPY api api
COPY client client
COPY migrations migrations
RUN python -m pip install --no-cache-dir --constraint constraints.txt .

# Away from the sources, so that the installed package runs, whose bytecode is made: for sources in the working directory
# nobody may write any, and every start would compile all of them anew.
WORKDIR /home/ghostwatt
USER ghostwatt
ENV PYTHONUNBUFFERED=1 \
    GHOSTWATT_DATA_DIR=/home/ghostwatt/data
EXPOSE 8411
CMD ["python", "-m", "api", "serve"]
