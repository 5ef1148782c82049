"""Several losses: summed before one backward, one a task, one a head; meters of plain numbers."""

from collections import defaultdict

import torch


def train(model, loaders, criteria, optimizer, scheduler, epochs, clip):
    for epoch in range(epochs):
        model.train()
        meters = defaultdict(float)
        for batches in zip(*loaders.values()):
            optimizer.zero_grad()
            total = 0
            for (task, criterion), (x, y) in zip(criteria.items(), batches):
                loss = criterion(model(x.cuda(), task), y.cuda())
                total = total + loss
                meters[task] += loss.item()
            total.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            scheduler.step()
        print(epoch, {task: value / len(loaders[task]) for task, value in meters.items()})


def train_with_auxiliary_heads(net, loader, criterion, optimizer):
    net.train()
    seen, running = 0, 0.0
    for images, labels in loader:
        outputs, *auxiliary = net(images.cuda())
        labels = labels.cuda()
        loss = criterion(outputs, labels)
        for head in auxiliary:
            loss += 0.4 * criterion(head, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += float(loss) * len(images)
        seen += len(images)
    return running / seen


def unrolled(model, loader, optimizer, horizon):
    for frames in loader:
        state, loss = frames[:, 0], 0.0
        for t in range(1, horizon):
            state = model(state)
            loss = loss + (state - frames[:, t]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
