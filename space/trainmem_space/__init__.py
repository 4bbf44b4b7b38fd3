"""The Gradio app. It shows what trainmem computes and computes nothing itself."""

import os

# Read by gradio and huggingface_hub when they are imported, so they are set before any module here imports
# them: no usage statistics, no version check, no telemetry.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["DO_NOT_TRACK"] = "1"
