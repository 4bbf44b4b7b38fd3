"""The Gradio app. It shows what trainmem computes and computes nothing itself."""
