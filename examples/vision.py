"""A ResNet or a vision transformer from transformers, trained on random pictures on CUDA.

``python -m trainmem trace examples/vision.py --model vit`` shows one step's memory with no GPU.
"""

import argparse

import torch
from transformers import ResNetConfig, ResNetForImageClassification, ViTConfig, ViTForImageClassification

MODELS = {
    "resnet": lambda: ResNetForImageClassification(ResNetConfig(num_labels=10)),
    "vit": lambda: ViTForImageClassification(ViTConfig(num_labels=10)),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, default="vit")
    parser.add_argument("--batch", type=int, default=16)
    chosen = parser.parse_args()
    model = MODELS[chosen.model]().to("cuda").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(100):
        pictures = torch.rand(chosen.batch, 3, 224, 224, device="cuda")
        labels = torch.randint(0, 10, (chosen.batch,), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(pixel_values=pictures, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
