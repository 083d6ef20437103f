"""Small models of kinds that PaddleNLP has not, or cannot run here, with the structure of public ones."""

import paddle
import paddle.nn.functional as F
from paddle import nn

D = 8


def mlp(*sizes):
    return nn.Sequential(*[part for a, b in zip(sizes, sizes[1:]) for part in (nn.Linear(a, b), nn.ReLU())][:-1])


class Attention(nn.Layer):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out = (nn.Linear(D, D) for _ in range(4))

    def forward(self, x, memory):
        return self.out(F.softmax(self.q_proj(x) @ self.k_proj(memory).transpose([0, 2, 1])) @ self.v_proj(memory))


class Block(nn.Layer):
    def __init__(self, cross=False):
        super().__init__()
        self.attn_norm, self.attn = nn.LayerNorm(D), Attention()
        self.cross_norm, self.cross_attn = (nn.LayerNorm(D), Attention()) if cross else (None, None)
        self.mlp_norm, self.mlp = nn.LayerNorm(D), mlp(D, 2 * D, D)

    def forward(self, x, memory=None, position=0.0):
        at = self.attn_norm(x)
        x = x + self.attn(at + position, at)
        if memory is not None:
            x = x + self.cross_attn(self.cross_norm(x) + position, memory)
        return x + self.mlp(self.mlp_norm(x))


class DecoderBlock(Block):
    pass


# ---- ConvNeXt: stages, with downsampling in a list of its own


class ConvNeXtBlock(nn.Layer):
    def __init__(self, width):
        super().__init__()
        self.dwconv, self.norm = nn.Conv2D(width, width, 7, padding=3, groups=width), nn.GroupNorm(1, width)
        self.pwconv1, self.pwconv2 = nn.Conv2D(width, 4 * width, 1), nn.Conv2D(4 * width, width, 1)
        self.gamma = self.create_parameter([width, 1, 1])

    def forward(self, x):
        return x + self.gamma * self.pwconv2(F.gelu(self.pwconv1(self.norm(self.dwconv(x)))))


class ConvNeXt(nn.Layer):
    def __init__(self, depths=(2, 3, 1), widths=(4, 8, 16)):
        super().__init__()
        stem = nn.Sequential(nn.Conv2D(3, widths[0], 4, 4), nn.GroupNorm(1, widths[0]))
        self.downsample_layers = nn.LayerList([stem])
        for a, b in zip(widths, widths[1:]):
            self.downsample_layers.append(nn.Sequential(nn.GroupNorm(1, a), nn.Conv2D(a, b, 2, 2)))
        stages = [nn.Sequential(*[ConvNeXtBlock(w) for _ in range(depth)]) for depth, w in zip(depths, widths)]
        self.stages, self.norm, self.head = nn.LayerList(stages), nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], 3)

    def forward(self, x):
        for down, stage in zip(self.downsample_layers, self.stages):
            x = stage(down(x))
        return self.head(self.norm(x.mean([2, 3])))


# ---- RT-DETR: stages that hold their blocks as attributes, a neck, and a decoder whose heads refine each other


class Residual(nn.Layer):
    def __init__(self, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2D(D, D, 3, stride, 1), nn.BatchNorm2D(D)
        self.conv2, self.bn2 = nn.Conv2D(D, D, 3, 1, 1), nn.BatchNorm2D(D)
        self.stride = stride

    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + F.avg_pool2d(x, self.stride, self.stride))


class ResNetStage(nn.Layer):
    def __init__(self, name, depth):
        super().__init__()
        self.blocks = [self.add_sublayer(f"{name}{'abc'[i]}", Residual(1 if i else 2)) for i in range(depth)]

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class RTDETR(nn.Layer):
    def __init__(self, layers=3, queries=4):
        super().__init__()
        self.backbone, self.neck, self.transformer = nn.Layer(), nn.Layer(), nn.Layer()
        self.backbone.conv1 = nn.Sequential(nn.Conv2D(3, D, 3, 2, 1), nn.BatchNorm2D(D))
        self.stages = []
        for i, depth in enumerate((2, 3, 2), 2):
            self.stages.append(self.backbone.add_sublayer(f"res{i}", ResNetStage(f"res{i}", depth)))
        self.neck.input_proj = nn.LayerList([nn.Conv2D(D, D, 1) for _ in range(2)])
        self.neck.encoder, self.neck.fpn = nn.LayerList([Block()]), nn.Conv2D(2 * D, D, 3, padding=1)
        head = self.transformer
        head.layers = nn.LayerList([DecoderBlock(cross=True) for _ in range(layers)])
        head.denoising_class_embed, head.tgt_embed = nn.Embedding(3, D), nn.Embedding(queries, D)
        head.query_pos_head, head.enc_output = mlp(4, D, D), nn.Sequential(nn.Linear(D, D), nn.LayerNorm(D))
        head.enc_score_head, head.enc_bbox_head = nn.Linear(D, 3), mlp(D, D, D, 4)
        head.dec_score_head = nn.LayerList([nn.Linear(D, 3) for _ in range(layers)])
        head.dec_bbox_head = nn.LayerList([mlp(D, D, D, 4) for _ in range(layers)])

    def forward(self, images):
        features, x, head = [], self.backbone.conv1(images), self.transformer
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        low, high = (proj(x) for proj, x in zip(self.neck.input_proj, features[1:]))
        high = self.neck.encoder[0](high.flatten(2).transpose([0, 2, 1])).transpose([0, 2, 1]).reshape(high.shape)
        low = self.neck.fpn(paddle.concat([low, F.interpolate(high, scale_factor=2)], 1))
        memory = paddle.concat([x.flatten(2).transpose([0, 2, 1]) for x in (low, high)], 1)
        found = head.enc_output(memory)
        chosen = head.enc_score_head(found).max(-1).topk(head.tgt_embed.weight.shape[0])[1][0]
        boxes = F.sigmoid(head.enc_bbox_head(found[:, chosen]))
        x = head.tgt_embed.weight.unsqueeze(0).tile([images.shape[0], 1, 1])
        for layer, refine in zip(head.layers, head.dec_bbox_head):
            x = layer(x, memory, head.query_pos_head(boxes))
            boxes = F.sigmoid(refine(x) + boxes)
        return head.dec_score_head[-1](x), boxes, head.enc_score_head(found)
