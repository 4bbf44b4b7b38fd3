"""Convolutions up and down, their first half in channels-last, under bf16 autocast."""

import torch
import torch.nn as nn

encoder = nn.Sequential(
    nn.Conv2d(3, 128, 3, 2, 1),
    nn.GroupNorm(8, 128),
    nn.SiLU(),
    nn.Conv2d(128, 256, 3, 2, 1),
    nn.BatchNorm2d(256),
    nn.GELU(),
    nn.Conv2d(256, 8, 3, 1, 1),
)
encoder = encoder.cuda().to(memory_format=torch.channels_last)
decoder = nn.Sequential(
    nn.ConvTranspose2d(8, 256, 4, 2, 1), nn.ReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(256, 3, 3, 1, 1)
).cuda()
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
for _ in range(4):
    x = torch.randn(32, 3, 256, 256, device="cuda").to(memory_format=torch.channels_last)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = decoder(torch.tanh(encoder(x)))
        loss = nn.functional.mse_loss(y.float(), x)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
