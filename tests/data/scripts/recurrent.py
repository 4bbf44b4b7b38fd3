"""A language model of two LSTM layers, in fp32."""

import torch
import torch.nn as nn

embedding = nn.Embedding(20000, 512).cuda()
layers = nn.LSTM(512, 1024, 2, batch_first=True, dropout=0.1).cuda()
head = nn.Linear(1024, 20000).cuda()
optimizer = torch.optim.AdamW([*embedding.parameters(), *layers.parameters(), *head.parameters()])
for _ in range(4):
    x = torch.randint(0, 20000, (16, 256), device="cuda")
    h, _ = layers(embedding(x))
    loss = nn.functional.cross_entropy(head(h).flatten(0, 1), x.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
