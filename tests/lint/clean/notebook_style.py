"""A script without functions, as notebooks have it: everything at the top, a cell after another."""

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
train_data = datasets.FashionMNIST("data", train=True, download=True, transform=transforms.ToTensor())
test_data = datasets.FashionMNIST("data", train=False, download=True, transform=transforms.ToTensor())
train_dataloader = DataLoader(train_data, batch_size=64, shuffle=True)
test_dataloader = DataLoader(test_data, batch_size=64)


class NeuralNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.stack = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))

    def forward(self, x):
        return self.stack(x)


model = NeuralNetwork().to(device)
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

train_losses, test_losses = [], []
for epoch in range(5):
    model.train()
    running_loss = 0
    for images, labels in train_dataloader:
        optimizer.zero_grad()
        log_ps = model(images.to(device))
        loss = loss_fn(log_ps, labels.to(device))
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
    else:
        test_loss, accuracy = 0, 0
        with torch.no_grad():
            model.eval()
            for images, labels in test_dataloader:
                log_ps = model(images.to(device))
                test_loss += loss_fn(log_ps, labels.to(device))
                top_class = torch.exp(log_ps).topk(1, dim=1)[1]
                equals = top_class.cpu() == labels.view(*top_class.shape)
                accuracy += equals.float().mean()
        train_losses.append(running_loss / len(train_dataloader))
        test_losses.append(test_loss.item() / len(test_dataloader))
        print(f"{epoch}: {train_losses[-1]:.3f} {test_losses[-1]:.3f} {accuracy.item() / len(test_dataloader):.3f}")

torch.save(model.state_dict(), "model.pth")
model = NeuralNetwork()
model.load_state_dict(torch.load("model.pth", map_location="cpu", weights_only=True))
model.eval()
x, y = test_data[0][0], test_data[0][1]
with torch.no_grad():
    pred = model(x)
    print(pred[0].argmax(0).item(), y)
