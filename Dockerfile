# The app:      docker build -t trainmem .                       docker run -p 7860:7860 trainmem
# The backend:  docker build -t trainmem-backend --target backend .
#               docker run --gpus all trainmem-backend measure --suite verify

FROM python:3.11-slim AS base
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
RUN useradd --create-home --uid 1000 user
WORKDIR /src
COPY pyproject.toml constraints.txt hatch_build.py README.md ./
COPY shared shared
COPY space space
COPY backend backend

FROM base AS compiler
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

# The package with its compiled allocator; the app's image needs no compiler for it.
FROM compiler AS package
RUN pip wheel --no-deps --wheel-dir /wheels .

# Triton compiles a small launcher for each kernel on the machine that runs it.
FROM compiler AS backend
# For a torch built for another CUDA: --build-arg PIP_ARGUMENTS="--extra-index-url ..."
ARG PIP_ARGUMENTS=""
RUN pip install ${PIP_ARGUMENTS} --constraint constraints.txt ".[gpu]"
USER user
WORKDIR /home/user
ENTRYPOINT ["trainmem"]
CMD ["measure", "--suite", "verify"]

FROM base AS space
COPY --from=package /wheels /wheels
RUN pip install --constraint constraints.txt "$(echo /wheels/*.whl)[space]"
USER user
# An empty folder of its own: what Gradio may serve is what lies below it.
RUN mkdir /home/user/app
WORKDIR /home/user/app
ENV GRADIO_SERVER_NAME=0.0.0.0 \
    GRADIO_SERVER_PORT=7860 \
    GRADIO_TEMP_DIR=/tmp/gradio
EXPOSE 7860
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:7860/config', timeout=4)"]
CMD ["python", "-m", "trainmem_space"]
