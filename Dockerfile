# docker build -t fedcpd .  &&  docker run --rm -v "$PWD/results:/fedcpd/results" fedcpd -algo FedCPD -data Digits -nc 20
FROM python:3.12-slim
WORKDIR /fedcpd
COPY . .
RUN bash scripts/setup.sh runtime && .venv/bin/pip install --no-cache-dir 'ray>=2.40'
ENV OMP_NUM_THREADS=1
WORKDIR /fedcpd/system
ENTRYPOINT ["../.venv/bin/python", "main.py"]
