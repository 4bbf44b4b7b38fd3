"""``python -m trainmem_space`` serves the app."""

import argparse

from trainmem_space.server import serve

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m trainmem_space", description="Serve the trainmem app.")
    parser.add_argument("--host", help="address to listen on (default: GRADIO_SERVER_NAME or 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (default: GRADIO_SERVER_PORT or 7860)")
    arguments = parser.parse_args()
    serve(arguments.host, arguments.port)
